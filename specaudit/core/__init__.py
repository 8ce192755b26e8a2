"""Value types, protocols, sampling parameters, artifact schemas and errors. Imports nothing else of specaudit."""
