"""The log on Kafka: each trap of the client is measured, and named where it is met."""
