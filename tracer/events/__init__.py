"""The vocabulary of what is recorded: each event, its attributes, and what a recorder declares about itself.

Pure data and functions. All other packages import it; it imports none of them.
"""
