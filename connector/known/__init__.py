"""What is known of particular connectors, one folder each; an engine imports its `probe` only.

`probe` says what can be seen inside it, `backend` stands in for its store on the bare scheduler, `environment` restores its
store for a re-run. A connector without a folder is traced all the same.
"""
