"""Is your speculative decoder lossless, and how much faster will it be on your traffic?"""
