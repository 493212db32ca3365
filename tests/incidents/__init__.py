"""The public record of drift, retold as histories, and what our rules make of it."""
