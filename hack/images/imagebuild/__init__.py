"""Builds the operator's, the runner's and a Redis image with the image builder that is there, without a registry if
need be.

Four things are made for each of the first two, each kept in the cache folder under a digest of all that goes into it: a
base image, a folder of installed dependencies, an image of base and dependencies, and the image proper. Redis is a base
image and a user. An unchanged checkout builds nothing.
"""
