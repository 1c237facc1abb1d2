"""What a terminal shows: pure functions from objects to tables, the live view, and drawings of a workflow."""
