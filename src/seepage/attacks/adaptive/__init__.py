"""What an attacker does who knows which defense the clients use."""
