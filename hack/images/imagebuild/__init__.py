"""Builds the operator's and the runner's image with the image builder that is there, without a registry if need be.

Four things are made, each kept in the cache folder under a digest of all that goes into it: a base image, a folder of
installed dependencies, an image of base and dependencies, and the image proper. An unchanged checkout builds nothing.
"""
