"""Fakes of the ports, shipped as product: each passes the contract suite of the adapter that it stands in for."""
