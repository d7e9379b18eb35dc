"""Queues of Kinesis: records of an on-demand stream, lent one by one to any number of receivers."""
