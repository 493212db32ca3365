"""Whether the KV that is read is the KV that was computed: fingerprints of blocks, and what is known of them by block hash.

In: vLLM's KV caches, and what a step computes, loads and takes over. Out: which blocks hold other bytes than were computed.
`docs/bytes.md` tells the rule. Only `fingerprint` needs torch.
"""
