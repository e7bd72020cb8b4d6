"""What an instance has and how busy it is: resource sets, queues, graph, load, quotes."""
