"""Whether the KV that is read is the KV that was computed: fingerprints of blocks, compared with references by block hash.

In: vLLM's KV caches, and what a step computes, loads and takes over. Out: which blocks are mismatches. `scheduler` plans the
checks of a step (`plan`); on a worker, `worker` runs them: `reading` reads `block_fingerprints`,
`judge` compares them with the `references`, and `result` is what is reported. `docs/concepts.md` has the rule. Only a worker
needs torch.
"""
