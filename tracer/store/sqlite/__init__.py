"""The default store: one SQLite file. `store` opens it; each other file has one table and its queries."""
