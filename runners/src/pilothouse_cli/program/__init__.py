"""The commands with their options, as a person types them: a module for each group, and `options`, which they share.

`--help` imports all of this, so it imports nothing but the parser; what a command does lies in `commands`.
"""
