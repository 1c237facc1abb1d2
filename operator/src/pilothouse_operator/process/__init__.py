"""The process around the reconcilers: how it begins, leads, stays in touch, is probed and ends.

`host` puts everything together and starts it; `lease` elects; `contract` checks the installed CRDs; `serving` answers
probes and metrics; `contact` and `sweep` run beside the workers. May import everything; nothing here decides about an
object, and nothing else imports it but `__main__`.
"""
