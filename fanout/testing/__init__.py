"""What users need to test their streaming jobs offline.

Public are the server in this process (`kinesis_server`) and in another (`kinesis_process`), its
figures (`rules`), what it does wrong on request (`faults`), what clients did to it (`statistics`),
the pytest fixtures (`pytest_plugin`), encoders of what the service sends (`frames`) and of what
producers put (`aggregation`), the real Apache Kafka (`kafka_broker`), and asyncio in virtual time
(`simulation`).

The modules with an underscore are the server, from the socket inwards: `_http` accepts, `_admin`
serves the other process, and `_moto_responses` answers each call of the API, the long ones in
`_subscribe`, `_polling` and `_list_shards`. Behind them `_moto_backend` holds the streams:
`_moto_stream`, its `_shard`s and its `_consumers`. `_service` is what all requests share, the
`_fault_plan` among it.
"""
