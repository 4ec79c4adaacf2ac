# The nodes talk freely among themselves. Rules are inline: as resources of their own they drift.
resource "aws_security_group" "nodes" {
  name        = "${var.cluster_id}-nodes"
  description = "Everything among the nodes, and outwards"
  vpc_id      = local.vpc_id
  tags        = { Name = "${var.cluster_id}-nodes" }

  ingress {
    description = "The nodes of this cluster"
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    self        = true
  }

  egress {
    description = "Packages and images"
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }

  # What EFA sends is no IP: a rule about addresses does not let it out.
  dynamic "egress" {
    for_each = var.efa ? ["efa"] : []

    content {
      description = "EFA among the nodes of this cluster"
      from_port   = 0
      to_port     = 0
      protocol    = "-1"
      self        = true
    }
  }
}

# The one way in from outside: SSH to the launcher, from one address or a few networks, or from an EC2
# Instance Connect Endpoint.
resource "aws_security_group" "ssh" {
  name        = "${var.cluster_id}-ssh"
  description = "SSH to the launcher"
  vpc_id      = local.vpc_id
  tags        = { Name = "${var.cluster_id}-ssh" }

  dynamic "ingress" {
    for_each = var.ssh_cidr == "" ? [] : [split(",", var.ssh_cidr)]

    content {
      description = "Whoever made the cluster"
      from_port   = 22
      to_port     = 22
      protocol    = "tcp"
      cidr_blocks = ingress.value
    }
  }

  dynamic "ingress" {
    for_each = var.instance_connect ? [concat(var.endpoint_groups, values(aws_security_group.endpoint)[*].id)] : []

    content {
      description     = "The EC2 Instance Connect Endpoint"
      from_port       = 22
      to_port         = 22
      protocol        = "tcp"
      security_groups = ingress.value
    }
  }
}

# The endpoint reaches nothing else in its VPC.
resource "aws_security_group" "endpoint" {
  for_each    = local.endpoint
  name        = "${var.cluster_id}-endpoint"
  description = "SSH from the EC2 Instance Connect Endpoint"
  vpc_id      = local.vpc_id
  tags        = { Name = "${var.cluster_id}-endpoint" }

  egress {
    description     = "SSH to the nodes of this cluster"
    from_port       = 22
    to_port         = 22
    protocol        = "tcp"
    security_groups = [aws_security_group.nodes.id]
  }
}
