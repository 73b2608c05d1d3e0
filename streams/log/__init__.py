"""What the runtime needs of Kafka, on Kafka and in memory; topics, records, transactions, and nothing of pipelines."""
