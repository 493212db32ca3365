"""The vocabulary of what is recorded: each event, its attributes, and what a recorder declares about itself.

Pure data and functions. Everybody imports it, and it imports nobody.
"""
