"""A Kubernetes cluster of plain processes in one network namespace of this machine, for tests and for trying things.

One module for each thing a cluster is made of; `cli` puts them together. Standard library only, because it runs before
anything is installed. What does not belong here: building the binaries (`../build`) and images (`hack/images`).
"""
