"""Rules about a connector's answers to lookups, and about their counts by the connector and the engine."""
