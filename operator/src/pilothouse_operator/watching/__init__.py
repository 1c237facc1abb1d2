"""The picture of the cluster, and which keys a change concerns: what wakes the reconcilers.

Kopf's watches (`informer`) feed the picture (`cache`); `routing` and `sessions` say which keys an object concerns, and
`queue` hands those out one at a time. `references` reads what is not watched, `finished` keeps what has left the watch.
Decides nothing about an object. May import `conditions` and `metrics`, and the client of the API server.
"""
