"""Rules about requests that one engine prefills and another decodes, by the joined spans of both (`ledger/handoffs.py`)."""
