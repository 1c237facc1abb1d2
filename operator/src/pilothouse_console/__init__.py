"""The operator API: runs listed, watched and steered over HTTP, with the caller's own Kubernetes rights.

A process of its own beside the operator. It decides nothing about runs and holds no state that matters: what it shows
comes from a watch, what it is asked becomes a patch of `spec.control` as anybody else's.
"""
