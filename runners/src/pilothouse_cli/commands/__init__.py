"""The verbs: each reads what it needs, asks `Runs` or the local host, and prints. Nothing here renders or stores."""
