"""The runs of a cluster, through the official client; loaded by who talks to one, for it takes two seconds."""
