"""A feature for Switchyard: what the operators have to say to all users."""
