"""What a person is shown: pure functions from objects to tables, the live view, and a workflow as text and picture."""
