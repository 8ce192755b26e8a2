"""Training of the models that specaudit ships and, later, of heads and distilled drafts for users' own targets."""
