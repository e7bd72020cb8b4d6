"""The commands about attributes, queues, pools and token pools."""
