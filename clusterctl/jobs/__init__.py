"""Jobs: stage the code, start it, follow it, end it, bring back what it made, keep the record."""
