"""Transcripts: what any engine made of a prompt, as token ids on disk."""
