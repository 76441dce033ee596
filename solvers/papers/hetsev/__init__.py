"""HetSev: autoscaling program, sharing and placement composed; fair queues."""
