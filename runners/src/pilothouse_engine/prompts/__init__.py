"""What a model is sent: the engine's own texts, the levels of a transcript, and which level fits (engine.md §1, §6)."""
