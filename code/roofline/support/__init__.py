"""Plumbing that no reader of the book has to read; it imports without torch."""
