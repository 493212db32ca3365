"""Rules about what one engine prefills and another decodes: both sides' spans, joined (`ledger/handoffs.py`)."""
