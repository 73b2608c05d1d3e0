"""A throw-away Apache Kafka for demo, tests and bench."""
