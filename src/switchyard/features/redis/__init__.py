"""Token pools in a Redis that several servers share."""
