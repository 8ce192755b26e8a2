"""What a round costs on this machine, the speedup that follows, and the speedup that is measured."""
