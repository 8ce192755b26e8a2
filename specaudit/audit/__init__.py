"""Is an output the target's own distribution? Exact laws of the rules, and sequential tests of what surrounds them."""
