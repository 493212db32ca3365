"""Checks that the KV that is read is the KV that was computed: compares fingerprints of blocks with references by block hash.

In: vLLM's KV caches, and the blocks that a step computes, loads and takes over. Out: mismatched blocks. `scheduler` plans the
checks of a step (`plan`); on a worker, `worker` runs them: `reading` reads `block_fingerprints`,
`judge` compares them with the `references`, and `result` is the reported result. `docs/concepts.md` has the rule. Only a
worker needs torch.
"""
