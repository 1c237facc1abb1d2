"""One module for each check: `evaluate(subject, params) -> Allow | Rewrite | Refuse`, pure and of linear time."""
