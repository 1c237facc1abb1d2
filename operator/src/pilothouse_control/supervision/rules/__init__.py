"""The deterministic rules: one pure function each, all of them in one table (`registry`)."""
