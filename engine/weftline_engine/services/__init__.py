"""What runs beside models: functions and tools of the operator, embedders, rerankers and stores."""
