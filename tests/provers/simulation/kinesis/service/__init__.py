"""The Kinesis service in a simulation: what it holds, answers, refuses and sends."""
