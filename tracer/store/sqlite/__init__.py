"""The default store: one SQLite file. `store` opens it; each other file is one table and the queries on it."""
