"""Rules about KV blocks: who holds them, who frees them, and what plans and allocations say of them."""
