"""kvtrail's own OffloadConnector."""
