"""The vocabulary: attributes, events, the arithmetic of a lookup, findings, and their words.

Pure data and functions. Everybody imports it, and it imports nobody.
"""
