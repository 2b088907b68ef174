"""What everything else reads: the tables of maps and losses, the checks, and the recipe that evaluates a row."""
